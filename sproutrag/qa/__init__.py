"""APT-RAG: a hard question grows a reasoning tree; every node reuses answers, retrieves, or decomposes."""

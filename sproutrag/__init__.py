"""The sproutrag library: pure functions and small classes; imports no Ray."""

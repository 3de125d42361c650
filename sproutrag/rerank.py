"""A cross-encoder that reads query and passage together: slower than the search before it, and optional."""

from collections.abc import Sequence

import numpy as np
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

BATCH = 16  # pairs at once


class CrossEncoder:
    """A sequence-classification model of transformers; with two classes the second means relevant."""

    def __init__(self, path: str, *, device: str | None = None) -> None:
        self.device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        self.tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=False)
        model = AutoModelForSequenceClassification.from_pretrained(path, trust_remote_code=False)
        self.model = model.to(self.device).eval()

    @torch.inference_mode()
    def scores(self, query: str, texts: Sequence[str]) -> np.ndarray:
        """(len(texts),) float32, higher is more relevant. Of a pair too long the text loses its end."""
        parts = [self.logits(query, texts[at : at + BATCH]) for at in range(0, len(texts), BATCH)]
        return np.concatenate(parts) if parts else np.empty(0, dtype=np.float32)

    def logits(self, query: str, texts: Sequence[str]) -> np.ndarray:
        longest = min(self.tokenizer.model_max_length, self.model.config.max_position_embeddings)
        pairs = self.tokenizer(
            [query] * len(texts),
            list(texts),
            truncation="only_second",
            max_length=longest,
            padding=True,
            return_tensors="pt",
        )
        logits = self.model(**pairs.to(self.device)).logits.float().cpu().numpy()
        return logits[:, 0] if logits.shape[1] == 1 else logits[:, 1] - logits[:, 0]

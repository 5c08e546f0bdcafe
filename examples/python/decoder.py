"""Greedy decoding with a cache of fixed size, whose steps are replays of a CUDA graph."""

import inspect

import torch
import transformers


class Decoder:
    """A model and its cache. On a GPU, all steps but the first two are replays of one graph."""

    def __init__(self, model: torch.nn.Module, positions: int, is_compiled: bool = False) -> None:
        self._model, self._graph, self._token, self._steps = model, None, None, 0
        self._step = torch.compile(self._next) if is_compiled else self._next
        self._cache = transformers.StaticCache(config=model.config, max_cache_len=positions)
        # The first versions of transformers 5 call the argument past_key_values.
        names = inspect.signature(model.forward).parameters
        self._of_cache = {"cache" if "cache" in names else "past_key_values": self._cache}

    @torch.no_grad()
    def prefill(self, prompt: torch.Tensor) -> torch.Tensor:
        """Begin a sequence. Return its first new token, ``[batch, 1]``."""
        self._cache.reset()
        token = self._next(prompt)
        self._token = token if self._token is None else self._token.copy_(token)
        return token.clone()

    @torch.no_grad()
    def step(self) -> torch.Tensor:
        """Return the next token, ``[batch, 1]``. It is valid until the next step."""
        # The first steps prepare operators and compile, which a capture must not do.
        if self._steps == 2 and self._token.is_cuda:
            self._capture()
        self._steps += 1
        if self._graph is None:
            self._token.copy_(self._step(self._token))
        else:
            self._graph.replay()
        return self._token

    def _next(self, tokens: torch.Tensor) -> torch.Tensor:
        logits = self._model(input_ids=tokens, use_cache=True, logits_to_keep=1, **self._of_cache).logits
        return logits[:, -1].argmax(-1, keepdim=True)

    def _capture(self) -> None:
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._token.copy_(self._step(self._token))

"""A tiny mixture-of-experts model, its tokenizer and a task family, all built by code: what `make demo` trains."""

"""OpenAI's HTTP API: bodies in, answers and streams out. The only place that knows FastAPI."""

"""The review page: a session in the browser."""

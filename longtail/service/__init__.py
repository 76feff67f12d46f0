"""The service: a model over HTTP, and a page. `xc serve` starts it; the application is `create_app` in `app.py`."""

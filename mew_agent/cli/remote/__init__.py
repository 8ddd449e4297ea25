"""One-shot commands that read or control a running space over HTTP."""

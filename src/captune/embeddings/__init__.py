"""Images are embedded once, cached, and scored against class texts."""

"""Pictures in pixels: a page to draw on, and colours that stay."""

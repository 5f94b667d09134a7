"""What commands print, composed as lines of text: one module a command."""

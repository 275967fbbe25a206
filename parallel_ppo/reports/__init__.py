"""Turns run directories into answers. Reads files only and never imports training code."""

"""Views of bandwidth tests."""

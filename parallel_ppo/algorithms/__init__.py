"""The learning arithmetic: pure functions, each with a slow twin in the tests."""

"""Others at the same work, at their best documented settings, each in processes of an interpreter of their own."""

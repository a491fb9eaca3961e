"""The commands psched and pschedd."""

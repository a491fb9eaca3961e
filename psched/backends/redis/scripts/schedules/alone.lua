return advance(1)

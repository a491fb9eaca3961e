return advance()

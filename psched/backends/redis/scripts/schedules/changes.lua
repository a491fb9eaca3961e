-- Returns the changes of a schedule's definition, the oldest first. ARGV: key.
return call('ZRANGE', T .. 'changes:' .. ARGV[1], 0, -1)

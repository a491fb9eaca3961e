-- Returns a page of keys with changes on record. ARGV: the last key before ('' at first), the most keys.
return call('ZRANGEBYLEX', T .. 'recorded', '(' .. ARGV[1], '+', 'LIMIT', 0, tonumber(ARGV[2]))

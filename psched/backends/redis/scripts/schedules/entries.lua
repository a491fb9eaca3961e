-- Returns entries of a schedule by occurrence, each followed by that. ARGV: key, the first and the last occurrence, the most
-- entries.
return call('ZRANGEBYSCORE', T .. 'entries:' .. ARGV[1], ARGV[2], ARGV[3], 'WITHSCORES', 'LIMIT', 0, tonumber(ARGV[4]))

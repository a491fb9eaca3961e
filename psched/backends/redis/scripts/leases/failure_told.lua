-- Forgets a failure. ARGV: its name.
call('ZREM', T .. 'untold', ARGV[1])
call('HDEL', T .. 'failures', ARGV[1])

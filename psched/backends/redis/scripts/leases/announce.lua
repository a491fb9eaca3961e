-- Records that a node is alive. ARGV: its name, section and types; without these two it is removed.
if #ARGV == 1 then
  call('HDEL', T .. 'nodes', ARGV[1])
else
  call('HSET', T .. 'nodes', ARGV[1], cjson.encode({ARGV[2], ARGV[3], whole(now)}))
end
return 1

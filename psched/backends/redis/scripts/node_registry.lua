-- The workers that are alive: `nodes` has section, types and last sign of each.

--- script KIND/announce: common, KIND
-- Records that a node is alive. ARGV: its name, section and types; with the name alone the node is removed.
if #ARGV == 1 then
  call('HDEL', T .. 'nodes', ARGV[1])
else
  call('HSET', T .. 'nodes', ARGV[1], cjson.encode({ARGV[2], ARGV[3], integer(now)}))
end
return 1

--- script KIND/alive_nodes: common, KIND
-- Returns the nodes that are alive as {name, section, types, milliseconds since the last sign}; removes nodes after a
-- day of silence.
-- ARGV: milliseconds for which a node counts as alive.
local NODE_EXPIRY = 86400000
local nodes, alive = call('HGETALL', T .. 'nodes'), {}
for place = 1, #nodes, 2 do
  local node = cjson.decode(nodes[place + 1])
  local age = math.max(0, now - tonumber(node[3]))
  if age > NODE_EXPIRY then
    call('HDEL', T .. 'nodes', nodes[place])
  elseif age <= tonumber(ARGV[1]) then
    alive[#alive + 1] = {nodes[place], node[1], node[2], integer(age)}
  end
end
return alive

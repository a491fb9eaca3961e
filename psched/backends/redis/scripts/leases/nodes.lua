-- Returns of each node that is alive its name, section, types, and the milliseconds since it was last seen; forgets those
-- that have been silent for a day. ARGV: how long a node counts as alive, in milliseconds.
local FORGOTTEN = 86400000
local nodes, alive = call('HGETALL', T .. 'nodes'), {}
for place = 1, #nodes, 2 do
  local told = cjson.decode(nodes[place + 1])
  local age = math.max(0, now - tonumber(told[3]))
  if age > FORGOTTEN then
    call('HDEL', T .. 'nodes', nodes[place])
  elseif age <= tonumber(ARGV[1]) then
    alive[#alive + 1] = {nodes[place], told[1], told[2], whole(age)}
  end
end
return alive

-- The workers that are alive: `nodes` has section, types and last sign of each.

-- Returns the fields of the hash `nodes` as {name, section, types, milliseconds since the last sign}.
local function all_nodes()
  local fields, nodes = call('HGETALL', T .. 'nodes'), {}
  for place = 1, #fields, 2 do
    local node = cjson.decode(fields[place + 1])
    nodes[#nodes + 1] = {fields[place], node[1], node[2], math.max(0, now - tonumber(node[3]))}
  end
  return nodes
end

--- script KIND/announce: common, KIND, node_registry
-- Records that a node is alive, and removes nodes after a day of silence when it is new. ARGV: its name, section and
-- types; with the name alone the node is removed.
local NODE_EXPIRY = 86400000
if #ARGV == 1 then
  call('HDEL', T .. 'nodes', ARGV[1])
  return 1
end
if call('HSET', T .. 'nodes', ARGV[1], cjson.encode({ARGV[2], ARGV[3], integer(now)})) == 1 then
  for _, node in ipairs(all_nodes()) do
    if node[4] > NODE_EXPIRY then
      call('HDEL', T .. 'nodes', node[1])
    end
  end
end
return 1

--- script KIND/alive_nodes: common, KIND, node_registry
-- Returns the nodes that are alive as {name, section, types, milliseconds since the last sign}.
-- ARGV: milliseconds for which a node counts as alive.
local alive = {}
for _, node in ipairs(all_nodes()) do
  if node[4] <= tonumber(ARGV[1]) then
    alive[#alive + 1] = {node[1], node[2], node[3], integer(node[4])}
  end
end
return alive

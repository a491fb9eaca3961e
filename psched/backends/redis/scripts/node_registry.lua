-- The known nodes. Each field of the hash `nodes` is a JSON array: the node's report (JSON, see node_registry.py), its
-- last sign of life and its start by the clock of Redis, and its own clock minus the clock of Redis (milliseconds).

-- Returns the fields of the hash `nodes` as {name, report, last sign, start, clock offset}.
local function all_nodes()
  local fields, nodes = call('HGETALL', T .. 'nodes'), {}
  for place = 1, #fields, 2 do
    local node = cjson.decode(fields[place + 1])
    local seen = tonumber(node[2]) or 0
    nodes[#nodes + 1] = {fields[place], tostring(node[1]), seen, tostring(node[3]), tostring(node[4])}
  end
  return nodes
end

--- script KIND/announce: common, KIND, node_registry
-- Records that a node is alive. If the node is new, removes nodes that have been silent for long. ARGV: its name,
-- report, milliseconds since its start, its clock (unix milliseconds), and milliseconds of silence after which a node
-- is removed. With the name alone, removes the node.
if #ARGV == 1 then
  call('HDEL', T .. 'nodes', ARGV[1])
  return 1
end
local times = {integer(now), integer(now - tonumber(ARGV[3])), integer(tonumber(ARGV[4]) - now)}
if call('HSET', T .. 'nodes', ARGV[1], cjson.encode({ARGV[2], times[1], times[2], times[3]})) == 1 then
  for _, node in ipairs(all_nodes()) do
    if now - node[3] > tonumber(ARGV[5]) then
      call('HDEL', T .. 'nodes', node[1])
    end
  end
end
return 1

--- script KIND/known_nodes: common, KIND, node_registry
-- Returns the nodes with a recent sign of life as {name, report, last sign, start, clock offset, clock of Redis}.
-- ARGV: milliseconds since the sign, at most.
local known = {}
for _, node in ipairs(all_nodes()) do
  if now - node[3] <= tonumber(ARGV[1]) then
    known[#known + 1] = {node[1], node[2], integer(node[3]), node[4], node[5], integer(now)}
  end
end
return known

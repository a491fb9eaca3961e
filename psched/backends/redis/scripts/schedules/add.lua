-- Creates rows. ARGV: nonce, node, reckoning, then for each row its key, how many words follow, fields and values.
-- Returns the keys that exist, but for those that a call with this very nonce has written.
local nonce, present = ARGV[1], {}

local function create(key, first, last)
  local row = row_of(key)
  local version = first_version(key)
  call('HSET', row, 'nonce', nonce, 'version', whole(version), 'status', 'waiting', 'fence', first_fence(T),
    'attempts', '0', 'crashes', '0', 'created', whole(now), 'updated', whole(now), unpack(ARGV, first, last))
  enter_change(key, version, 'add', ARGV[2], '', ARGV[3])
  local is = call('HMGET', row, 'type', 'due')
  know_type(T, is[1])
  move(key, is[1], tonumber(is[2]))
  watch(key)
end

-- Calls `each` with the key, the first and the last word of every row.
local function for_each(each)
  local place = 4
  while place <= #ARGV do
    local last = place + 1 + tonumber(ARGV[place + 1])
    each(ARGV[place], place + 2, last)
    place = last + 1
  end
end

for_each(see_that_changes_can_be_entered)
for_each(function(key, first, last)
  if call('EXISTS', row_of(key)) == 0 then
    create(key, first, last)
  elseif redis.pcall('HGET', row_of(key), 'nonce') ~= nonce then
    present[#present + 1] = key
  end
end)
return present

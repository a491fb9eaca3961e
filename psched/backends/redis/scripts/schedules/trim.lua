-- Deletes what the ledger need not keep. ARGV: the age in milliseconds of what goes, a key ('' for none) and how many of its
-- entries stay, the most entries of each kind to delete, and the key whose changes were looked at last.
-- Returns the most that was deleted of a kind, and the key whose changes were looked at.
local key, limit = ARGV[2], tonumber(ARGV[4])
local oldest, deleted = now - tonumber(ARGV[1]), 0

local function drop(from, occurrence, fence)
  local entry = entered(from, occurrence, fence)
  if entry then
    call('ZREM', T .. 'entries:' .. from, entry)
  end
end

for _, kind in ipairs({'settled:0', 'settled:1'}) do
  local found = call('ZRANGEBYSCORE', T .. kind, '-inf', '(' .. whole(oldest * 1000), 'LIMIT', 0, limit)
  for _, place in ipairs(found) do
    local occurrence, fence, from = place:match('^(%-?%d+):(%d+):(.*)$')
    if from then
      drop(from, occurrence, fence)
    end
    call('ZREM', T .. kind, place)
  end
  deleted = math.max(deleted, #found)
end

if key ~= '' then
  local entries = T .. 'entries:' .. key
  local surplus = math.min(call('ZCARD', entries) - tonumber(ARGV[3]), limit)
  local found = surplus > 0 and call('ZRANGE', entries, 0, surplus - 1, 'WITHSCORES') or {}
  for at = 1, #found, 2 do
    local place = found[at + 1] .. ':' .. (found[at]:match('^{"fence":(%d+),') or '') .. ':' .. key
    call('ZREM', entries, found[at])
    call('ZREM', T .. 'settled:0', place)
    call('ZREM', T .. 'settled:1', place)
  end
  deleted = math.max(deleted, #found / 2)
end

-- Of one schedule, the changes that an old one has superseded, and an old one that deleted it.
local following = call('ZRANGEBYLEX', T .. 'recorded', '(' .. ARGV[5], '+', 'LIMIT', 0, 1)[1] or ''
local changes, superseded = T .. 'changes:' .. following, nil
for _, change in ipairs(following ~= '' and call('ZRANGE', changes, 0, limit - 1) or {}) do
  local known, is = pcall(cjson.decode, change)
  if known and is.changed >= oldest then
    break
  end
  if superseded then
    call('ZREM', changes, superseded)
  end
  superseded = change
  if known and is.action == 'delete' then
    call('ZREM', changes, change)
    superseded = nil
  end
end
if following ~= '' and call('EXISTS', changes) == 0 then
  call('ZREM', T .. 'recorded', following)
end
return {deleted, following}

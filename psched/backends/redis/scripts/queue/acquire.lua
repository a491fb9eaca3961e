-- Leases rows, the users taking turns: one row after another goes to the user of the greatest weight, at equal weights to
-- who has waited longest. A user's weight is his max_running (or 1) divided by how many of his would then run. Half of
-- the room that a user has is left to other workers, lest one takes all ahead and runs one after another. A user who gets
-- nothing, since the rows of others have the bytes of this acquire, comes first at the next one.
-- ARGV: the most rows, the lease in milliseconds, 1 when the runs begin later (else 0), holder, number of this acquire,
-- spans of earlier ones to be undone (counted), types (counted; -1 for any). Returns rows: key and fields, of what is no row any more none, but
-- `run` if it was running.
local WINDOW = 64  -- users who are compared, those who have waited longest
local ROUNDS = 4   -- how many windows are looked at when their users turn out to have no room
local CUT_OFF = 64 -- users who come first since they were cut off, at the most
local LASTS = 60000 -- milliseconds after which it is forgotten that a user was cut off
local AHEAD = 200  -- rows moved at once from where they wait to where they stand in line

local CLAIMED = {'type', 'data', 'attempts', 'last_error', 'cancel_requested', 'run_at', 'created', 'user', 'max_running',
  'priority', 'max_attempts', 'fence', 'due', 'claim', 'nonce', 'taken_ahead'}

local limit, ahead, holder, number = tonumber(ARGV[1]), ARGV[3] == '1', ARGV[4], ARGV[5]
local ends = now + tonumber(ARGV[2])
local undone, place = counted(6)
local types = counted(place)
if ARGV[place] == '-1' then
  types = {''}
end

local strange = {}  -- keys of what is no hash, and of runs whose hashes are gone

-- Returns the keys of a sorted set up to now; those whose rows somebody has deleted or spoilt are dropped from it. But a
-- run stays there until its user's room is free again, which takes a search (see free.lua).
local function ripe(set, status)
  local found = call('ZRANGEBYSCORE', set, '-inf', whole(now), 'LIMIT', 0, math.max(AHEAD, limit))
  local keys = {}
  for _, key in ipairs(found) do
    local is = redis.pcall('HGET', row_of(key), 'status')
    if is == status then
      keys[#keys + 1] = key
    else
      if set == T .. 'leases:' then
        strange[#strange + 1] = {key, {}, 'run'}
      elseif type(is) == 'table' then
        strange[#strange + 1] = {key, {}}
      end
      if set ~= T .. 'leases:' then
        call('ZREM', set, key)
      end
    end
  end
  return keys
end

-- Leases that have ended are ended for good, lest they come to life beside their successors.
local function end_leases(type)
  for _, key in ipairs(ripe(T .. 'leases:' .. type, 'running')) do
    local _, _, _, due = facts(key)
    grow(row_of(key), 'fence', 1)
    forget_unbegun(row_of(key))
    call('HSET', row_of(key), 'taken_ahead', '3')
    quit(key)
    wait(key, due)
  end
end

-- What is due stands in line.
local function line_up(type)
  for _, key in ipairs(ripe(T .. 'later:' .. type, 'waiting')) do
    local kind, user, priority, due = facts(key)
    drop('later', key, kind)
    queue_up(key, kind, user, priority, due)
  end
end

-- The rows of a line one after another, read in growing parts.
local function open_line(type, user)
  return {type = type, line = line_of(type, user), at = 0, read = {}, size = 1}
end

-- Returns the row that is next in a line, and its place in the order.
local function head_of(line)
  if line.at * 2 == #line.read and not line.ended then
    local found = call('ZRANGE', line.line, line.at, line.at + line.size - 1, 'WITHSCORES')
    for _, value in ipairs(found) do
      line.read[#line.read + 1] = value
    end
    line.ended = #found < line.size * 2
    line.size = line.size * 4
  end
  return line.read[line.at * 2 + 1], tonumber(line.read[line.at * 2 + 2])
end

local function least(one, other)
  return one and other and math.min(one, other) or one or other
end

local taken, rows, blocked = {}, {}, {}
local had = {}  -- how many rows of each user were leased by this acquire

-- Takes the row of a user out of its lines, when all is done.
local function pass(user, type)
  taken[#taken + 1] = {key = user.key, user = user.name, type = type}
  user.line.at = user.line.at + 1
end

-- Finds the row of a user that is to run next, and his weight for it.
local function look(user)
  user.key, user.weight = nil, nil
  local first
  for _, line in ipairs(user.lines) do
    local key, score = head_of(line)
    if key and (not first or score < first) then
      first, user.key, user.line = score, key, line
    end
  end
  if not user.key then
    return
  end
  local is = redis.pcall('HMGET', row_of(user.key), 'max_running', 'type', 'status', 'size')
  if is.err then
    strange[#strange + 1] = {user.key, {}}
  end
  if is[3] ~= 'waiting' then  -- somebody has deleted or spoilt the row
    pass(user, user.line.type)
    return look(user)
  end
  user.limit, user.type, user.size = limit_of(is[1]), is[2] or '', size_of(is[4])
  local most = least(user.most, user.limit)
  if most and user.running >= most then
    blocked[#blocked + 1] = {type = user.line.type, user = user.name}
    user.line.read, user.line.at, user.line.ended = {}, 0, true
    return look(user)
  end
  local count = had[user.name] or 0
  if not most or count == 0 or count < math.floor((most - user.running + count) / 2) then
    user.weight = (most or 1) / (user.running + 1)
  end
end

local came_first = {}  -- users who were cut off by an earlier acquire

-- Returns the users who were cut off by the bytes of an acquire and got nothing since, in the order in which that happened.
local function cut_off_before()
  local found = redis.pcall('ZRANGE', T .. 'cut', 0, CUT_OFF - 1)
  if found.err then  -- somebody has put something else in its place
    call('DEL', T .. 'cut')
    return {}
  end
  return found
end

-- Returns the users of a window of each type, and whether there may be more.
local function candidates()
  local users, by_name = {}, {}
  local some, full = earliest(types, 'turn:')
  local function meet(type, name, due)
    local user = by_name[name]
    if not user then
      user = {name = name, due = due, place = #users, lines = {}, running = call('ZCARD', T .. 'run:' .. name)}
      local most = tonumber(call('ZRANGE', T .. 'run:' .. name, 0, 0, 'WITHSCORES')[2])
      user.most = most and most < math.huge and most or nil
      by_name[name], users[#users + 1] = user, user
    end
    user.due = math.min(user.due, due)
    user.lines[#user.lines + 1] = open_line(type, name)
  end
  for _, type in ipairs(some) do
    local found = call('ZRANGE', T .. 'turn:' .. type, 0, WINDOW - 1, 'WITHSCORES')
    full = full or #found == WINDOW * 2
    for at = 1, #found, 2 do
      meet(type, found[at], tonumber(found[at + 1]))
    end
  end
  local has_users = #users > 1 or (users[1] and users[1].name ~= '')  -- else nobody can have been cut off by others
  for place, name in ipairs(has_users and cut_off_before() or {}) do
    if full and not by_name[name] then
      for _, type in ipairs(some) do
        local due = call('ZSCORE', T .. 'turn:' .. type, name)
        if due then
          meet(type, name, tonumber(due))
        end
      end
    end
    if by_name[name] and not had[name] then
      by_name[name].first, came_first[name] = place, true
    end
  end
  if #some > 1 then
    table.sort(users, function(one, other)
      return one.due < other.due or (one.due == other.due and one.place < other.place)
    end)
  end
  for _, user in ipairs(users) do
    look(user)
  end
  return users, full
end

local function goes_before(one, other)
  if one.first or other.first then
    return one.first ~= nil and (other.first == nil or one.first < other.first)
  end
  return one.weight > other.weight
end

local function next_turn(users)
  local best
  for _, user in ipairs(users) do
    if user.weight and (not best or goes_before(user, best)) then
      best = user
    end
  end
  return best
end

local bytes = 0  -- of the data of what was leased
local cut, is_cut = {}, false  -- users who got nothing, and whether the bytes were too few for somebody

-- Leases one row after another until there are enough, or nobody has anything left that may be taken.
local function share_out(users)
  while #rows < limit do
    local user = next_turn(users)
    if not user then
      return
    end
    if #rows > 0 and bytes + user.size > BATCH then
      user.weight, is_cut = nil, true
      if not had[user.name] then
        cut[#cut + 1] = user.name
      end
    else
      begin(user.key, ends, ahead, holder, number)
      rows[#rows + 1] = {user.key, call('HMGET', row_of(user.key), unpack(CLAIMED))}
      pass(user, user.type)
      bytes = bytes + user.size
      user.running = user.running + 1
      had[user.name] = (had[user.name] or 0) + 1
      user.most, user.first = least(user.most, user.limit), nil
      if #rows < limit then
        look(user)
      end
    end
  end
end

-- Keeps who was cut off, for the next acquire, and forgets who has got something.
local function note_cut_off()
  for name in pairs(came_first) do
    if had[name] then
      call('ZREM', T .. 'cut', name)
    end
  end
  if #cut > 0 then
    call('ZREMRANGEBYSCORE', T .. 'cut', '-inf', whole((now - LASTS) * 1000))
    for place, name in ipairs(cut) do
      call('ZADD', T .. 'cut', 'NX', whole(now * 1000 + place), name)
    end
    call('PEXPIRE', T .. 'cut', LASTS)
  end
end

-- Takes what was leased out of its lines, and puts the turns in order.
local function tidy()
  local touched = {}
  for _, row in ipairs(taken) do
    for _, type in ipairs({'', row.type}) do
      local line = line_of(type, row.user)
      call('ZREM', line, row.key)
      touched[line] = {type = type, user = row.user}
    end
  end
  for _, line in pairs(touched) do
    enter(line.type, line.user)
  end
  for _, line in ipairs(blocked) do
    park(line.type, line.user)
  end
  taken, blocked = {}, {}
end

undo(holder, undone)
if types[1] ~= '' then  -- what has ended of other types takes room of the same users
  end_leases('')
end
for _, type in ipairs(types) do
  end_leases(type)
  line_up(type)
end
for _ = 1, ROUNDS do
  local users, full = candidates()
  share_out(users)
  tidy()
  if #rows >= limit or is_cut or not full then
    break
  end
end
note_cut_off()
for _, row in ipairs(strange) do
  rows[#rows + 1] = row
end
return rows

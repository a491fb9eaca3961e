-- Events to be sent: the stream `outbox`, each with `at` (milliseconds) and `facts` (JSON).

local MOST_EVENTS = 100000  -- about so many are kept

-- Adds an event, if any. `facts`: JSON, '' for none.
local function put_event(facts)
  if facts ~= '' then
    call('XADD', T .. 'outbox', 'MAXLEN', '~', MOST_EVENTS, '*', 'at', integer(now), 'facts', facts)
  end
end

-- Deletes events; `ids` are those of the stream. The stream is deleted with its last event.
local function delete_events(ids)
  if #ids > 0 then
    call('XDEL', T .. 'outbox', unpack(ids))
  end
  if call('XLEN', T .. 'outbox') == 0 then
    call('DEL', T .. 'outbox')
  end
end

--- script KIND/put_event: common, KIND, outbox
-- Adds an event. ARGV: its facts.
put_event(ARGV[1])

--- script KIND/events: common, KIND
-- Returns the oldest events as {id, {'at', …, 'facts', …}}. ARGV: how many at most.
return call('XRANGE', T .. 'outbox', '-', '+', 'COUNT', ARGV[1])

--- script KIND/remove_events: common, KIND, outbox
-- Deletes events. ARGV: ids.
delete_events(ARGV)

--- script KIND/trim_events: common, KIND, outbox
-- Deletes old events, and returns their number. ARGV: the age in milliseconds, how many at most.
local ids = {}
for place, event in ipairs(call('XRANGE', T .. 'outbox', '-', integer(now - tonumber(ARGV[1])), 'COUNT', ARGV[2])) do
  ids[place] = event[1]
end
delete_events(ids)
return #ids

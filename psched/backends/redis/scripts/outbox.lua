-- Events to be sent: the stream `outbox`. Each event has `at` (milliseconds) and `facts` (JSON).

local MOST_EVENTS = 100000  -- about this many events are kept

-- Adds an event. `facts`: JSON; '' for no event.
local function put_event(facts)
  if facts ~= '' then
    call('XADD', T .. 'outbox', 'MAXLEN', '~', MOST_EVENTS, '*', 'at', integer(now), 'facts', facts)
  end
end

-- Deletes events. `ids`: their ids in the stream. The stream is deleted together with its last event.
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
-- Returns the oldest events as {id, {'at', …, 'facts', …}}. ARGV: the maximum number of events.
return call('XRANGE', T .. 'outbox', '-', '+', 'COUNT', ARGV[1])

--- script KIND/remove_events: common, KIND, outbox
-- Deletes events. ARGV: ids.
delete_events(ARGV)

--- script KIND/trim_events: common, KIND, outbox
-- Deletes old events, and returns their number. ARGV: the age in milliseconds, the maximum number of events.
local ids = {}
for place, event in ipairs(call('XRANGE', T .. 'outbox', '-', integer(now - tonumber(ARGV[1])), 'COUNT', ARGV[2])) do
  ids[place] = event[1]
end
delete_events(ids)
return #ids

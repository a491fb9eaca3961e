-- Named calendars: the hash `calendars` has for each name `version:milliseconds:JSON`; without JSON if it was deleted.

--- script schedules/calendars: common, schedules
-- Returns the names and values of all calendars.
return call('HGETALL', T .. 'calendars')

--- script schedules/write_calendar: common, schedules
-- Writes the next version of a calendar. ARGV: name, the version before (0: none), JSON ('' to delete it).
-- Returns 1; 0 if another version is stored, except the version that an earlier attempt of this call has written.
local before = call('HGET', T .. 'calendars', ARGV[1])
local version, content = (before or '0::'):match('^(%d+):%d*:(.*)$')
local seen = tonumber(ARGV[2])
if tonumber(version) == seen + 1 and content == ARGV[3] then
  return 1
end
if tonumber(version) ~= seen then
  return 0
end
call('HSET', T .. 'calendars', ARGV[1], integer(seen + 1) .. ':' .. integer(now) .. ':' .. ARGV[3])
return 1

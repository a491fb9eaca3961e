-- Actions of visitors of the web pages: the list `actions` of JSON arrays of number, milliseconds, user, action, key
-- and detail, the newest first.

--- script KIND/record_action: common, KIND, visitor_actions
-- Records an action, unless an earlier attempt of this call has done so. ARGV: the call's number, the number of actions
-- to keep, the rest as JSON.
local begin = '[' .. ARGV[1] .. ','
for _, known in ipairs(call('LRANGE', T .. 'actions', 0, 99)) do
  if known:sub(1, #begin) == begin then
    return 0
  end
end
call('LPUSH', T .. 'actions', begin .. integer(now) .. ',' .. ARGV[3] .. ']')
call('LTRIM', T .. 'actions', 0, ARGV[2] - 1)
return 1

--- script KIND/last_actions: common, KIND, visitor_actions
-- Returns the last actions. ARGV: the maximum number of actions.
return call('LRANGE', T .. 'actions', 0, ARGV[1] - 1)

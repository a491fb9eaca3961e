-- How far reports have got: the hash `watermarks` has for each `kind:name` an object with `position`, `since` and
-- `detail`. If a node has claimed the right to report, also with `claimer` and `claimed_until`.

-- Returns the mark in a field; nil if there is none or no valid one.
local function watermark_in(field)
  local text = call('HGET', T .. 'watermarks', field)
  local is_valid, mark = pcall(cjson.decode, text or '')
  if is_valid and type(mark) == 'table' and type(mark.position) == 'number' then
    return mark
  end
end

-- Writes a mark. Does not use cjson, because it would shorten the numbers.
local function write_watermark(field, mark)
  call('HSET', T .. 'watermarks', field, '{"position":' .. integer(mark.position) .. ',"since":' .. integer(mark.since)
    .. ',"claimed_until":' .. integer(mark.claimed_until or 0) .. ',"claimer":' .. cjson.encode(mark.claimer or '')
    .. ',"detail":' .. cjson.encode(mark.detail) .. '}')
end

--- script KIND/raise_watermark: common, KIND, watermarks
-- Makes a mark, or raises it. ARGV: its field, position, detail as JSON.
local mark = watermark_in(ARGV[1])
local position = tonumber(ARGV[2])
if not mark then
  mark = {since = now}
elseif mark.position >= position then
  return
end
mark.position, mark.detail = position, cjson.decode('[' .. ARGV[3] .. ']')[1]
write_watermark(ARGV[1], mark)

--- script KIND/watermarks: common, KIND
-- Returns marks as {field, JSON} in the order of their names. ARGV: the prefix of their fields, the name after which to
-- start, the maximum number of marks.
local fields, found = call('HKEYS', T .. 'watermarks'), {}
for _, field in ipairs(fields) do
  if field:sub(1, #ARGV[1]) == ARGV[1] and is_less(ARGV[1] .. ARGV[2], field) then
    found[#found + 1] = field
  end
end
table.sort(found, is_less)
local marks = {}
for place = 1, math.min(#found, tonumber(ARGV[3])) do
  marks[place] = {found[place], call('HGET', T .. 'watermarks', found[place])}
end
return marks

--- script KIND/claim_watermark: common, KIND, watermarks
-- Claims the right to report. ARGV: field, position, claimer, milliseconds. Returns 1; 0 if another node has claimed
-- it.
local mark = watermark_in(ARGV[1])
if not mark or mark.position ~= tonumber(ARGV[2])
  or ((mark.claimed_until or 0) > now and mark.claimer ~= ARGV[3]) then
  return 0
end
mark.claimer, mark.claimed_until = ARGV[3], now + tonumber(ARGV[4])
write_watermark(ARGV[1], mark)
return 1

--- script KIND/remove_watermark: common, KIND, watermarks
-- Removes a mark unless it has moved. ARGV: its field, position.
local mark = watermark_in(ARGV[1])
if mark and mark.position == tonumber(ARGV[2]) then
  call('HDEL', T .. 'watermarks', ARGV[1])
end

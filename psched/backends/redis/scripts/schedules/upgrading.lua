-- Before schedules.lua: a table that is older is to be upgraded, so that this is no fault of it.
local fault_of = problem
local function problem(meta, kind)
  local fault = fault_of(meta, kind)
  if fault and fault:find('^OLDERTABLE') then
    return nil
  end
  return fault
end

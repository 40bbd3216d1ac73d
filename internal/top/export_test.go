package top

// For the tests.
var (
	Clean   = clean
	Columns = columnsOf
	Clip    = clip
	Wrap    = wrap
	Number  = number
	Size    = size
	Latency = latency
	Uptime  = uptime
	Decode  = decode
)

package suite

// ParseGo and SplitGo are parseGo and splitGo.
var (
	ParseGo = parseGo
	SplitGo = splitGo
)

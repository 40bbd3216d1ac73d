package pgwire

// MacRoom and MacOf are what SCRAM's messages are signed with.
const MacRoom = macRoom

var MacOf = macOf

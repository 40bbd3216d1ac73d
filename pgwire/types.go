package pgwire

// Types of the messages that a frontend (client) sends. Some letters mean something else when a backend sends them.
const (
	TypeBind         = 'B'
	TypeClose        = 'C'
	TypeCopyFail     = 'f'
	TypeDescribe     = 'D'
	TypeExecute      = 'E'
	TypeFlush        = 'H'
	TypeFunctionCall = 'F'
	TypeParse        = 'P'
	TypePassword     = 'p' // PasswordMessage, SASLInitialResponse and SASLResponse
	TypeQuery        = 'Q'
	TypeSync         = 'S'
	TypeTerminate    = 'X'
)

// Types of the messages that both sides send.
const (
	TypeCopyData = 'd'
	TypeCopyDone = 'c'
)

// Types of the messages that a backend (server) sends.
const (
	TypeAuthentication           = 'R'
	TypeBackendKeyData           = 'K'
	TypeBindComplete             = '2'
	TypeCloseComplete            = '3'
	TypeCommandComplete          = 'C'
	TypeCopyBothResponse         = 'W'
	TypeCopyInResponse           = 'G'
	TypeCopyOutResponse          = 'H'
	TypeDataRow                  = 'D'
	TypeEmptyQueryResponse       = 'I'
	TypeErrorResponse            = 'E'
	TypeFunctionCallResponse     = 'V'
	TypeNegotiateProtocolVersion = 'v'
	TypeNoData                   = 'n'
	TypeNoticeResponse           = 'N'
	TypeNotificationResponse     = 'A'
	TypeParameterDescription     = 't'
	TypeParameterStatus          = 'S'
	TypeParseComplete            = '1'
	TypePortalSuspended          = 's'
	TypeReadyForQuery            = 'Z'
	TypeRowDescription           = 'T'
)

// Format codes of values.
const (
	FormatText   int16 = 0
	FormatBinary int16 = 1
)

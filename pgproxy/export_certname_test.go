package pgproxy

// NameIn exposes nameIn.
var NameIn = nameIn

package hba

// Tokens returns the fields of a line.
func Tokens(s string) (fields [][]string, err error) {
	parsed, err := fieldsOf(s)
	for _, f := range parsed {
		var texts []string
		for _, t := range f {
			texts = append(texts, t.text)
		}
		fields = append(fields, texts)
	}
	return fields, err
}

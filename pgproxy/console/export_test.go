package console

// Split is split: the kinds and texts of each command's tokens, and what is shown of it.
func Split(text string) (kinds []string, tokens [][]string, shown []string, err error) {
	list, err := split(text)
	for _, s := range list {
		var kind []byte
		var texts []string
		for _, t := range s.tokens {
			kind, texts = append(kind, t.kind), append(texts, t.text)
		}
		kinds, tokens, shown = append(kinds, string(kind)), append(tokens, texts), append(shown, s.text)
	}
	return kinds, tokens, shown, err
}

package httpproxy

import "github.com/headpond/headpond/traffic"

// Counts of a model.
const (
	answersKnown     = iota // that have told their tokens
	answersEstimated        // whose tokens are estimated in part
	answersUnknown          // others
	inputTokens
	cachedTokens // a part of inputTokens
	outputTokens
	modelCounts
)

// Timings of a model, of streamed answers.
const (
	firstTokenTime = iota // from the request's head to the model's first text
	perTokenTime          // of each further token, as the mean of an answer
	modelTimings
)

// maxModels bounds the models that a listener counts by name, with the routes and upstreams that they are asked by: clients
// choose the names, though only those that servers accept are counted.
const maxModels = 1000

var modelTraffic = &traffic.Schema{
	Labels: []string{"route", "upstream", "model"}, Limit: maxModels, Kept: 2, Counts: modelCounts, Timings: modelTimings,
	Views: []traffic.View{{
		Labels: []string{"route", "upstream", "model"},
		Counters: []traffic.Counter{
			{Name: "llm_tokens_total", Help: llmTokensHelp, Label: "kind", Value: "input", Read: traffic.Count(inputTokens)},
			{Name: "llm_tokens_total", Help: llmTokensHelp, Label: "kind", Value: "output", Read: traffic.Count(outputTokens)},
			{Name: "llm_cached_tokens_total", Help: "The part of the input tokens that servers had in their caches.", Read: traffic.Count(cachedTokens)},
			{Name: "llm_answers_total", Help: llmAnswersHelp, Label: "usage", Value: "known", Read: traffic.Count(answersKnown)},
			{Name: "llm_answers_total", Help: llmAnswersHelp, Label: "usage", Value: "estimated", Read: traffic.Count(answersEstimated)},
			{Name: "llm_answers_total", Help: llmAnswersHelp, Label: "usage", Value: "unknown", Read: traffic.Count(answersUnknown)},
		},
		Histograms: []traffic.Timer{
			{Name: "llm_time_to_first_token_seconds", Help: "Of streamed answers: time from a request's head to the first text of the model.", Read: traffic.Time(firstTokenTime)},
			{Name: "llm_time_per_output_token_seconds", Help: "Of streamed answers: mean time of each token after the first; its inverse is tokens per second.", Read: traffic.Time(perTokenTime)},
		},
	}},
}

// Counts of a user. The first ones are those of tokens.
const (
	userInput = iota
	userCached
	userOutput
	userAnswers
	userLimited // requests that a TokenLimit has refused
	userCounts
)

// maxLLMUsers bounds the users that a listener counts by name, with their routes.
const maxLLMUsers = 1000

var userTraffic = &traffic.Schema{
	Labels: []string{"route", "user"}, Limit: maxLLMUsers, Kept: 1, Counts: userCounts,
	Views: []traffic.View{{
		Labels: []string{"route", "user"},
		Counters: []traffic.Counter{
			{Name: "llm_user_tokens_total", Help: llmUserHelp, Label: "kind", Value: "input", Read: traffic.Count(userInput)},
			{Name: "llm_user_tokens_total", Help: llmUserHelp, Label: "kind", Value: "output", Read: traffic.Count(userOutput)},
			{Name: "llm_user_cached_tokens_total", Help: "The part of the input tokens that servers had in their caches, by user.", Read: traffic.Count(userCached)},
			{Name: "llm_user_answers_total", Help: "Answers of language models with status 2xx, by user.", Read: traffic.Count(userAnswers)},
			{Name: "llm_user_limited_total", Help: "Requests that were refused by a limit of tokens, by user.", Read: traffic.Count(userLimited)},
		},
	}},
}

const (
	llmUserHelp    = "Tokens that language models have read (input, with cached ones) and made (output), by authenticated user, with estimated ones."
	llmTokensHelp  = "Tokens that language models have read (input, with cached ones) and made (output), with estimated ones."
	llmAnswersHelp = "Answers of language models with status 2xx: whether they have told their tokens, or these are estimated."
)

// ModelUse is what a Proxy has counted for a model, since its start.
type ModelUse struct {
	Route, Upstream string
	Model           string // as clients name it; traffic.Other = further models
	Known           uint64 // answers that have told their tokens
	Estimated       uint64 // answers whose tokens are estimated: see LLM
	Unknown         uint64 // others
	Input, Output   uint64 // tokens
	Cached          uint64 // a part of Input
	// FirstToken is the time from a request to the first text of a streamed answer, and PerToken that of each further
	// token.
	FirstToken, PerToken traffic.Histogram
}

// Models returns what the Proxy has counted for the models of routes with LLM, in no order.
func (p *Proxy) Models() []ModelUse {
	rows := p.models.Snapshot().Rows
	uses := make([]ModelUse, 0, len(rows))
	for _, r := range rows {
		uses = append(uses, ModelUse{
			Route: r.Labels[0], Upstream: r.Labels[1], Model: r.Labels[2], Known: r.Counts[answersKnown], Estimated: r.Counts[answersEstimated], Unknown: r.Counts[answersUnknown],
			Input: r.Counts[inputTokens], Cached: r.Counts[cachedTokens], Output: r.Counts[outputTokens],
			FirstToken: r.Timings[firstTokenTime], PerToken: r.Timings[perTokenTime],
		})
	}
	return uses
}

// UserUse is what a Proxy has counted for an authenticated user of language models, since its start.
type UserUse struct {
	Route         string
	User          string // of BasicAuth or BearerAuth; traffic.Other = further users
	Answers       uint64 // with status 2xx
	Limited       uint64 // requests that a TokenLimit has refused
	Input, Output uint64 // tokens
	Cached        uint64 // a part of Input
}

// Users returns what the Proxy has counted for the users of routes with LLM, in no order.
func (p *Proxy) Users() []UserUse {
	rows := p.users.Snapshot().Rows
	uses := make([]UserUse, 0, len(rows))
	for _, r := range rows {
		uses = append(uses, UserUse{
			Route: r.Labels[0], User: r.Labels[1], Answers: r.Counts[userAnswers], Limited: r.Counts[userLimited], Input: r.Counts[userInput], Cached: r.Counts[userCached], Output: r.Counts[userOutput],
		})
	}
	return uses
}

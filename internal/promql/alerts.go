/*
Copyright The AlterShield Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

package promql

import (
	"fmt"
	"slices"
	"strings"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
)

// LabelState is the label of ALERTS that is pending or firing. The series ALERTS_FOR_STATE do not have it.
const LabelState = "alertstate"

// Alerts returns the queries for the alerts of a namespace that match.
//
// firing returns the firing alerts: the series of ALERTS_FOR_STATE, whose value is the time at which the alert began, and the series
// of ALERTS for an alert without one. It returns a series without labels if the endpoint has samples that are not older than a
// duration of PromQL: without it, no alert is no news. earlier returns the alerts that were pending or firing in the hour before its
// time.
func Alerts(matchers []string, namespaceLabel, namespace, recent string) (firing *Query, earlier string, err error) {
	own, err := printed(matchers)
	if err != nil {
		return nil, "", err
	}
	const state = " ignoring (alertstate) ALERTS{alertstate=\"firing\",$}"
	queries := [2]*Query{}
	for i, format := range []string{"ALERTS_FOR_STATE{$} and" + state + " or" + state, "last_over_time(ALERTS{$}[1h])"} {
		expr, err := parse(strings.ReplaceAll(format, "$", own))
		if err == nil {
			queries[i], err = limited(expr, namespaceLabel, namespace)
		}
		if err != nil {
			return nil, "", fmt.Errorf("matchers: %w", err)
		}
	}
	// It reads other namespaces, and its result has neither labels nor a value of them.
	queries[0].Text = fmt.Sprintf(`(%s) or group(last_over_time({__name__=~"ALERTS|up"}[%s]))`, queries[0].Text, recent)
	return queries[0], queries[1].Text, nil
}

// printed returns matchers of a user as they are part of a selector. Each is parsed alone, and printed from its syntax tree, so that
// it cannot end the selector.
func printed(matchers []string) (string, error) {
	all := make([]string, len(matchers))
	for i, text := range matchers {
		selector := "ALERTS{" + text + "}"
		var parsed []*labels.Matcher
		err := bounded(selector)
		if err == nil {
			parsed, err = parser.NewParser(parser.Options{}).ParseMetricSelector(selector)
		}
		at := slices.IndexFunc(parsed, func(m *labels.Matcher) bool { return m.Name != model.MetricNameLabel })
		switch {
		case err != nil:
			return "", fmt.Errorf("matchers[%d]: %s does not parse: %s", i, selector, first(err))
		case len(parsed) != 2 || at < 0:
			return "", fmt.Errorf(`matchers[%d]: give one matcher of a label, as severity="page"`, i)
		case variable.MatchString(parsed[at].Value):
			return "", fmt.Errorf("matchers[%d]: matchers have no variables: the operator selects the workload and its pods", i)
		case parsed[at].Name == LabelState:
			return "", fmt.Errorf("matchers[%d]: leave alertstate out: only firing alerts fail", i)
		}
		all[i] = parsed[at].String()
	}
	return strings.Join(all, ","), nil
}

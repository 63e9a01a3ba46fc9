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

package metrics

import (
	"strings"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

const (
	// otherPolicies is the label of policies, and of checks, without series of their own.
	otherPolicies = "other"
	// maxPolicies is the number of policies with series of their own, and maxChecks the number of
	// checks of each.
	maxPolicies = 500
	maxChecks   = 32
)

// ListChecks returns the names of the checks of each policy (namespace/name) that exists.
type ListChecks func() (map[string][]string, error)

// policyChecks counts the checks of policies. The series of deleted policies and checks are removed
// whenever the metrics are read.
type policyChecks struct {
	*prometheus.CounterVec
	list atomic.Pointer[ListChecks]
	mu   sync.Mutex
	own  map[string]map[string]bool
}

func newPolicyChecks() *policyChecks {
	return &policyChecks{own: map[string]map[string]bool{}, CounterVec: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "altershield_checks_total",
		Help: "Checks of policies that entered a phase, by policy (namespace/name; other if more than 500 policies exist), " +
			"check, phase and mode. A check in the background that passes stays Watching. At the stage Admission each request counts.",
	}, []string{"policy", "check", "phase", "mode"})}
}

func (p *policyChecks) count(c *v1alpha1.CheckStatus) {
	p.mu.Lock()
	defer p.mu.Unlock()
	at := strings.LastIndex(c.Name, "/")
	policy, check := c.Name[:max(at, 0)], c.Name[at+1:]
	own := p.own[policy]
	if own == nil && len(p.own) < maxPolicies {
		own = map[string]bool{}
		p.own[policy] = own
	}
	switch {
	case own == nil:
		policy, check = otherPolicies, otherPolicies
	case !own[check] && len(own) >= maxChecks:
		check = otherPolicies
	default:
		own[check] = true
	}
	p.WithLabelValues(policy, check, string(c.Phase), string(c.Mode)).Inc()
}

// Collect implements prometheus.Collector. If the policies cannot be listed, all series stay.
func (p *policyChecks) Collect(collected chan<- prometheus.Metric) {
	p.prune()
	p.CounterVec.Collect(collected)
}

func (p *policyChecks) prune() {
	list := p.list.Load()
	if list == nil {
		return
	}
	exist, err := (*list)()
	if err != nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for policy, own := range p.own {
		checks, exists := exist[policy]
		if policy != "" && !exists { // the check of the server has no policy
			p.DeletePartialMatch(prometheus.Labels{"policy": policy})
			delete(p.own, policy)
			continue
		}
		named := map[string]bool{}
		for _, check := range checks {
			named[check] = true
		}
		for check := range own {
			if policy != "" && !named[check] {
				p.DeletePartialMatch(prometheus.Labels{"policy": policy, "check": check})
				delete(own, check)
			}
		}
	}
}

// Check counts a check of a policy that entered a phase.
func Check(c *v1alpha1.CheckStatus) { checks.count(c) }

// PolicyChecks sets the function that lists the checks that may have series. The last manager of a
// process sets it.
func PolicyChecks(list ListChecks) { checks.list.Store(&list) }

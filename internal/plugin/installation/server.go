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

package installation

import (
	"fmt"
	"net/url"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/defense"
)

const (
	pageServer     = "connect-altershield-server.md"
	pageServerDown = "operations.md#altershieldserverdown"
)

func serverChecks(f *Facts) []Check {
	c := newCheck("server.configured", "AlterShield Server is configured, or not wanted")
	if c, unread := f.Deployments.unread(c); unread {
		return []Check{c}
	}
	if f.container() == nil {
		return []Check{c.skip("the manager's Deployment is not there")}
	}
	address := f.flag("altershield-url", "")
	if address == "" {
		return []Check{c.ok("there is none: the operator runs stand-alone"), token(f)}
	}
	return []Check{c.ok("%s", shown(address)), serverHealthy(f), token(f)}
}

// shown is a URL without a password.
func shown(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return "an address that is no URL"
	}
	return u.Redacted()
}

// serverHealthy tells what the replicas say of the server: each asks it all the time.
func serverHealthy(f *Facts) Check {
	c := newCheck("server.healthy", "AlterShield Server answers every replica")
	if c, unread := f.Pods.unread(c); unread {
		return c
	}
	var failed, unknown []string
	for i := range f.Pods.Value {
		p := &f.Pods.Value[i]
		if p.DeletionTimestamp != nil {
			continue
		}
		said := serverCondition(p)
		switch {
		case said == nil:
			unknown = append(unknown, p.Name)
		case said.Status == corev1.ConditionFalse:
			failed = append(failed, fmt.Sprintf("%s: %s: %s", p.Name, said.Reason, said.Message))
		}
	}
	switch {
	case len(failed) > 0:
		return c.fail(strings.Join(failed, "; "),
			"releases wait for their verdicts until these are overdue; look at the server, the network and the token", pageServerDown)
	case len(unknown) > 0:
		return c.warn(strings.Join(unknown, ", ")+" did not say yet", "wait a minute; then look at the log of the manager", pageServerDown)
	case len(f.Pods.Value) == 0:
		return c.skip("there are no pods")
	}
	return c.ok("")
}

func serverCondition(p *corev1.Pod) *corev1.PodCondition {
	for i := range p.Status.Conditions {
		if p.Status.Conditions[i].Type == v1alpha1.ConditionServerHealthy {
			return &p.Status.Conditions[i]
		}
	}
	return nil
}

// token looks for the token that is shared with the server.
func token(f *Facts) Check {
	c := newCheck("server.token", "the token shared with AlterShield Server is there")
	file, stand := f.flag("altershield-token-file", ""), f.flag("altershield-url", "") == ""
	if file == "" {
		if stand {
			return c.ok("there is none, and none is needed: no request over HTTP is accepted")
		}
		return c.fail("the manager has no --altershield-token-file: the server refuses what it sends, and its callbacks are refused",
			"make the Secret and mount it", pageServer)
	}
	name := f.tokenSecret()
	if name == "" {
		return c.skip("%s is on no mounted Secret", file)
	}
	if c, unread := f.Token.unread(c); unread {
		return c
	}
	key := file[strings.LastIndex(file, "/")+1:]
	create := fmt.Sprintf("kubectl -n %s create secret generic %s %s", f.Namespace, defense.ShellWord(name), defense.ShellWord("--from-file="+key))
	if f.Token.missing() {
		return c.fail("there is no Secret "+name+" in "+f.Namespace, create, pageServer)
	}
	if len(strings.TrimSpace(string(f.Token.Value.Data[key]))) == 0 {
		return c.fail(fmt.Sprintf("the Secret %s has no key %s", name, key), create, pageServer)
	}
	return c.ok("the Secret %s", name)
}

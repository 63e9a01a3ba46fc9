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

package node

import (
	"bufio"
	"bytes"
	"encoding/json"
	"os"
	"slices"
	"strings"

	. "github.com/onsi/gomega"
	rbacv1 "k8s.io/api/rbac/v1"
)

// unusedRights returns each verb on a resource that a rule gives and that no request of the operator in
// the audit log has. It ignores names and namespaces. No request has an update of finalizers:
// the API server asks for that right when an object blocks the deletion of its owner, and refuses the
// object otherwise, which the observer finds.
func unusedRights(g Gomega, rules []rbacv1.PolicyRule) (unused []string) {
	log, err := os.Open(cluster.AuditLog())
	g.Expect(err).NotTo(HaveOccurred())
	defer log.Close()
	used := map[string]bool{}
	for lines := bufio.NewReader(log); ; {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			break // at the end, where a line may be unfinished
		}
		if !bytes.Contains(line, []byte(operatorUser)) {
			continue
		}
		var e struct {
			Verb      string
			User      struct{ Username string }
			ObjectRef struct{ APIGroup, Resource, Subresource string }
		}
		g.Expect(json.Unmarshal(line, &e)).To(Succeed())
		if o := e.ObjectRef; e.User.Username == operatorUser {
			used[e.Verb+" "+o.APIGroup+" "+strings.TrimSuffix(o.Resource+"/"+o.Subresource, "/")] = true
		}
	}
	for _, rule := range rules {
		for _, verb := range rule.Verbs {
			for _, group := range rule.APIGroups {
				for _, resource := range rule.Resources {
					if right := verb + " " + group + " " + resource; !used[right] && !strings.HasSuffix(resource, "/finalizers") {
						unused = append(unused, right)
					}
				}
			}
		}
	}
	slices.Sort(unused)
	return unused
}

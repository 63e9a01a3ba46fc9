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

// Command webhookmanifests prints the webhook configurations as they are in
// config/webhook/manifests.yaml.
package main

import (
	"bytes"
	"fmt"
	"os"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/traas-stack/altershield-operator/hack/controlplane"
	"github.com/traas-stack/altershield-operator/internal/certificates"
	"github.com/traas-stack/altershield-operator/internal/workload"
	"github.com/traas-stack/altershield-operator/webhooks"
)

func main() {
	text, err := manifests(workload.Defended())
	if err == nil {
		_, err = os.Stdout.Write(text)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "webhookmanifests:", err)
		os.Exit(1)
	}
}

// manifests are the configurations of the webhooks of these kinds, with the namespaces
// that they never see, and the configurations of declared kinds, which are empty.
func manifests(kinds *workload.Registry) ([]byte, error) {
	excluded := certificates.Excluded(controlplane.ManagerNamespace)
	exclude := func(selector *metav1.LabelSelector) {
		selector.MatchExpressions = append(selector.MatchExpressions, excluded)
	}
	var text bytes.Buffer
	for _, configuration := range append(webhooks.Configurations(kinds), certificates.Declared(nil)...) {
		switch c := configuration.(type) {
		case *admissionregistrationv1.MutatingWebhookConfiguration:
			for i := range c.Webhooks {
				exclude(c.Webhooks[i].NamespaceSelector)
			}
		case *admissionregistrationv1.ValidatingWebhookConfiguration:
			for i := range c.Webhooks {
				exclude(c.Webhooks[i].NamespaceSelector)
			}
		}
		document, err := yaml.Marshal(configuration)
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(&text, "---\n%s", document)
	}
	return text.Bytes(), nil
}

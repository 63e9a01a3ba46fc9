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

// Package manifests checks the rendered manifests, and applies them to a real API server.
package manifests

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/hack/controlplane"
)

const (
	namespace   = "altershieldoperator-system"
	prefix      = "altershieldoperator-"
	managerName = prefix + "controller-manager"
)

// overlays are the directories of config/ that users apply.
var overlays = []string{"default", "certmanager", "prometheus", "network-policy", "admission-policy", "samples", "samples/server"}

func repository(t *testing.T) string {
	t.Helper()
	root, err := controlplane.Root(".")
	if err != nil {
		t.Fatal(err)
	}
	return root
}

// render renders a directory of config/ with kubectl kustomize.
func render(t *testing.T, dir string) []byte {
	t.Helper()
	root := repository(t)
	kubectl := filepath.Join(controlplane.BinDir(root), "kubectl")
	if _, err := os.Stat(kubectl); err != nil && testing.Short() {
		t.Skip("needs kubectl, which is built by: make controlplane")
	}
	var stderr bytes.Buffer
	cmd := exec.CommandContext(context.Background(), kubectl, "kustomize", filepath.Join(root, "config", filepath.FromSlash(dir)))
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("kustomize %s: %v\n%s", dir, err, &stderr)
	}
	if stderr.Len() > 0 {
		t.Errorf("kustomize %s warns: %s", dir, &stderr)
	}
	return out
}

// objects decodes rendered manifests.
func objects(t *testing.T, manifests []byte) []unstructured.Unstructured {
	t.Helper()
	var all []unstructured.Unstructured
	for document := range strings.SplitSeq(string(manifests), "\n---\n") {
		var o unstructured.Unstructured
		if err := yaml.Unmarshal([]byte(document), &o.Object); err != nil {
			t.Fatalf("%v\n%s", err, document)
		}
		if len(o.Object) > 0 {
			all = append(all, o)
		}
	}
	return all
}

var strict = func() runtime.Decoder {
	scheme := runtime.NewScheme()
	utilruntime.Must(clientgoscheme.AddToScheme(scheme))
	utilruntime.Must(v1alpha1.AddToScheme(scheme))
	return serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
}()

// decode decodes a manifest into its Go type; an unknown field is an error.
func decode(t *testing.T, data []byte) runtime.Object {
	t.Helper()
	o, _, err := strict.Decode(data, nil, nil)
	if err != nil {
		t.Fatalf("%v\n%s", err, data)
	}
	return o
}

// all returns the objects of a kind in rendered manifests, strictly decoded.
func all[T any](t *testing.T, manifests []byte, kind string) []*T {
	t.Helper()
	var found []*T
	for _, o := range objects(t, manifests) {
		if o.GetKind() != kind {
			continue
		}
		data, err := o.MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		typed, ok := any(decode(t, data)).(*T)
		if !ok {
			t.Fatalf("%s %s is another type", kind, o.GetName())
		}
		found = append(found, typed)
	}
	if len(found) == 0 {
		t.Fatalf("no %s", kind)
	}
	return found
}

func managerOf(t *testing.T, manifests []byte) *appsv1.Deployment {
	t.Helper()
	d := all[appsv1.Deployment](t, manifests, "Deployment")
	if len(d) != 1 || d[0].Name != managerName || len(d[0].Spec.Template.Spec.Containers) != 1 {
		t.Fatalf("want one Deployment %s of one container", managerName)
	}
	return d[0]
}

// selects returns an error unless a selector of labels selects set.
func selects(selector *metav1.LabelSelector, set map[string]string) error {
	if len(selector.MatchLabels) == 0 || len(selector.MatchExpressions) > 0 {
		return fmt.Errorf("the selector %v does not have labels only", selector)
	}
	for k, v := range selector.MatchLabels {
		if set[k] != v {
			return fmt.Errorf("the selector %v does not select %v", selector.MatchLabels, set)
		}
	}
	return nil
}

// webhook has the common fields of mutating and validating webhooks.
type webhook struct {
	name     string
	config   string
	client   admissionregistrationv1.WebhookClientConfig
	selector *metav1.LabelSelector
}

func webhooksOf(t *testing.T, manifests []byte) []webhook {
	t.Helper()
	var found []webhook
	for _, c := range all[admissionregistrationv1.MutatingWebhookConfiguration](t, manifests, "MutatingWebhookConfiguration") {
		for _, w := range c.Webhooks {
			found = append(found, webhook{w.Name, c.Name, w.ClientConfig, w.NamespaceSelector})
		}
	}
	for _, c := range all[admissionregistrationv1.ValidatingWebhookConfiguration](t, manifests, "ValidatingWebhookConfiguration") {
		for _, w := range c.Webhooks {
			found = append(found, webhook{w.Name, c.Name, w.ClientConfig, w.NamespaceSelector})
		}
	}
	return found
}

func containerPort(d *appsv1.Deployment, name string) int32 {
	for _, p := range d.Spec.Template.Spec.Containers[0].Ports {
		if p.Name == name {
			return p.ContainerPort
		}
	}
	return 0
}

func flagsOf(d *appsv1.Deployment) map[string]string {
	flags := map[string]string{}
	for _, arg := range d.Spec.Template.Spec.Containers[0].Args {
		name, value, _ := strings.Cut(strings.TrimPrefix(arg, "--"), "=")
		flags[name] = value
	}
	return flags
}

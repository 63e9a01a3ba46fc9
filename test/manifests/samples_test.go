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

package manifests

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/settings"
)

// TestSamples checks that every setting has a sample, and that the operator accepts each sample.
func TestSamples(t *testing.T) {
	dir := filepath.Join(repository(t), "config", "samples")
	files, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(dir, "kustomization.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var kustomization struct{ Resources []string }
	if err := yaml.Unmarshal(data, &kustomization); err != nil {
		t.Fatal(err)
	}
	assessed := map[string]bool{}
	for _, file := range files {
		name := filepath.Base(file)
		if name == "kustomization.yaml" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if !strings.HasPrefix(string(data), "# ") {
				t.Error("the sample does not begin with a comment")
			}
			switch o := decode(t, data).(type) {
			case *v1alpha1.OpsConfigInfo:
				if a := settings.Assess(o); !a.Accepted {
					t.Errorf("%s: %s", a.Reason, a.Message)
				}
				if o.Namespace != namespace || name != "opsconfiginfo-"+o.Name+".yaml" {
					t.Errorf("%s/%s is not the setting of this file, or not in the namespace of the operator", o.Namespace, o.Name)
				}
				if !slices.Contains(kustomization.Resources, name) {
					t.Error("it is not in kustomization.yaml")
				}
				assessed[o.Name] = true
			case *appsv1.Deployment:
				if o.Name != "sleep" || o.Namespace != "" {
					t.Errorf("%s/%s is not the Deployment of the walkthrough", o.Namespace, o.Name)
				}
			case *corev1.Secret:
				if o.Name != "altershield-token" || o.Namespace != namespace || len(o.StringData["token"]) >= 16 {
					t.Error("want a Secret altershield-token with a placeholder that is too short for a token")
				}
			default:
				t.Errorf("no sample has the type %T", o)
			}
		})
	}
	for _, o := range settings.DefaultObjects(namespace) {
		if !assessed[o.Name] {
			t.Errorf("the setting %s has no sample", o.Name)
		}
	}
	render(t, "samples")
	secret := managerOf(t, render(t, "samples/server")).Spec.Template.Spec.Volumes[0].Secret.SecretName
	if secret != "altershield-token" {
		t.Errorf("the connected manager reads the Secret %s", secret)
	}
}

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

package runnable

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/yaml"

	"github.com/traas-stack/altershield-operator/test/wrappers"
)

func TestAPIServer(t *testing.T) {
	if testing.Short() {
		t.Skip("starts an API server")
	}
	RegisterFailHandler(Fail)
	RunSpecs(t, "Background tasks against an API server")
}

const ours = "altershieldoperator-system"

var (
	// admin may do everything; the operator may do what its role says.
	admin          client.Client
	operatorConfig *rest.Config
)

var _ = BeforeSuite(func(ctx SpecContext) {
	ctrl.SetLogger(GinkgoLogr)
	binaries, err := filepath.Abs(filepath.Join("..", "bin", "k8s"))
	Expect(err).NotTo(HaveOccurred())
	_, err = os.Stat(filepath.Join(binaries, "kube-apiserver"))
	Expect(err).NotTo(HaveOccurred(), "run make controlplane")
	testEnv := &envtest.Environment{BinaryAssetsDirectory: binaries}
	testEnv.ControlPlane.GetAPIServer().Configure().Set("authorization-mode", "RBAC")
	_, err = testEnv.Start()
	DeferCleanup(func() { Expect(testEnv.Stop()).To(Succeed()) })
	Expect(err).NotTo(HaveOccurred())
	admin, err = client.New(testEnv.Config, client.Options{})
	Expect(err).NotTo(HaveOccurred())
	Expect(admin.Create(ctx, wrappers.MakeNamespace(ours).Obj())).To(Succeed())
	user, err := testEnv.AddUser(envtest.User{Name: "operator"}, nil)
	Expect(err).NotTo(HaveOccurred())
	operatorConfig = user.Config()
	installRoles(ctx)
})

// installRoles grants the operator its generated roles.
func installRoles(ctx context.Context) {
	data, err := os.ReadFile(filepath.Join("..", "config", "rbac", "role.yaml"))
	Expect(err).NotTo(HaveOccurred())
	for document := range bytes.SplitSeq(data, []byte("\n---\n")) {
		role := &unstructured.Unstructured{}
		Expect(yaml.Unmarshal(document, &role.Object)).To(Succeed())
		Expect(admin.Create(ctx, role)).To(Succeed())
		meta := metav1.ObjectMeta{Namespace: role.GetNamespace(), Name: "operator"}
		subjects := []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: "operator"}}
		of := rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: role.GetKind(), Name: role.GetName()}
		binding := client.Object(&rbacv1.ClusterRoleBinding{ObjectMeta: meta, Subjects: subjects, RoleRef: of})
		if of.Kind == "Role" {
			binding = &rbacv1.RoleBinding{ObjectMeta: meta, Subjects: subjects, RoleRef: of}
		}
		Expect(admin.Create(ctx, binding)).To(Succeed())
	}
}

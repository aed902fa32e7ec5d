package wire

// The paths at which Quern's own clients call a server, below its address.
const (
	ReportsPath     = "/api/v1/reports"
	ImportPath      = "/api/v1/import"
	ExportPath      = "/api/v1/export"
	RollupsPath     = "/api/v1/rollups"
	StatusPath      = "/api/v1/status/aggregation"
	SlicesPath      = "/api/v1/status/slices"
	CardinalityPath = "/api/v1/cardinality"
	SourcesPath     = "/api/v1/sources"
	ExplainPath     = "/api/v1/explain"
	ReaggregatePath = "/api/v1/reaggregate"
	BackupPath      = "/api/v1/admin/backup"
	VerifyPath      = "/api/v1/verify"
	DashboardsPath  = "/api/v1/dashboards"
	GroupsPath      = "/api/v1/groups"

	TokensPath      = "/api/v1/tokens"
	RevokeTokenPath = "/api/v1/tokens/revoke"
)
